"""BERT compression under one loop: the methods of six papers, their baselines, and the records that they leave."""

import warnings

# Libraries ask tqdm for its notebook bar, which needs ipywidgets and says so; the bars here are lines of text.
warnings.filterwarnings("ignore", message="IProgress not found")
