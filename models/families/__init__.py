"""Model families, one file each: `model_type: roberta` in a config.json means `models/families/roberta.py`.

A file has a class `Family`, which is a `Backbone`. Its name is the model type with _ for -.
"""
