"""`pretrieve rehearse`: the stages of a recipe on synthetic data with tiny models, before the real run."""
