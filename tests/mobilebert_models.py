"""Tiny MobileBERT students, IB-BERT teachers and what they read. Helpers of the tests; nothing here is a result."""

import numpy as np
import torch
from transformers import MobileBertConfig, MobileBertForMaskedLM

from lib import fast, parameters
from lib.batches import Encoded
from lib.methods import mobilebert
from lib.methods.ibbert_model import IBBertConfig, IBBertForMaskedLM

VOCABULARY, DEPTH = 60, 3


def config(cls=MobileBertConfig, **changes):
    """Of a student, or of a teacher (`IBBertConfig`): 3 blocks of width 16, 60 words."""
    c = cls(**{"vocab_size": VOCABULARY, "hidden_size": 16, "embedding_size": 8, "num_hidden_layers": DEPTH,
               "num_attention_heads": 2, "intra_bottleneck_size": 8 if cls is MobileBertConfig else 24,
               "intermediate_size": 32, "num_feedforward_networks": 2 if cls is MobileBertConfig else 1,
               "classifier_activation": False, "max_position_embeddings": 40, **changes})
    c._attn_implementation = fast.ATTENTION
    return c


def student(seed=0, **changes):
    """A masked language model at its initial state, dropout off."""
    torch.manual_seed(seed)
    return fast.install(MobileBertForMaskedLM(config(**changes))).eval()


def teacher(seed=1):
    """A frozen IB-BERT away from its initial state, so that its blocks and its attention have something to say."""
    torch.manual_seed(seed)
    model = fast.install(IBBertForMaskedLM(config(IBBertConfig))).eval().requires_grad_(False)
    for p in model.parameters():
        p.data += 0.2 * torch.randn_like(p)
    model.get_input_embeddings().weight.data[0] = 0
    return model


def batch(rows=4, length=9, seed=2):
    """At most 4 rows of unlike lengths, padded with 0: `input_ids` and `attention_mask`, (rows, length)."""
    g = torch.Generator().manual_seed(seed)
    mask = (torch.arange(length)[None] < torch.tensor([length, 5, 7, 3])[:rows, None]).long()
    return {"input_ids": torch.randint(5, VOCABULARY, (rows, length), generator=g) * mask, "attention_mask": mask}


class Tokenizer:
    """What a masker asks of a tokenizer."""

    mask_token_id, all_special_ids, pad_token_id = 4, [0, 1, 2, 3, 4], 0

    def get_vocab(self):
        return {f"w{i}": i for i in range(VOCABULARY)}


def text(rows=24, seed=3):
    """Rows of made-up words between [CLS] and [SEP], without labels."""
    g = np.random.default_rng(seed)
    sequences = [[2, *g.integers(5, VOCABULARY, g.integers(4, 12)).tolist(), 3] for _ in range(rows)]
    return Encoded({"input_ids": sequences, "attention_mask": [[1] * len(s) for s in sequences]},
                   np.zeros(rows, dtype=np.int64), np.array([len(s) for s in sequences]), np.arange(rows),
                   {"input_ids": 0})


def settings(**changes):
    """Parameters of MobileBERT for stages that the test itself calls."""
    return parameters.validate(mobilebert.Config, {"precision": "fp32", "general_batch_size": 8, "transfer_epochs": 6,
                                                   "general_lr": 0.003, "transfer_lr": 0.003, **changes})
