"""BERT compression under one loop: the methods of six papers, their baselines, and the records that they leave."""
