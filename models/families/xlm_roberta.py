"""XLM-RoBERTa (Conneau et al. 2020): RoBERTa with a vocabulary of 100 languages."""

from __future__ import annotations

from models.families.roberta import Family as Roberta


class Family(Roberta):
    pass
