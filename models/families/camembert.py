"""CamemBERT (Martin et al. 2020): RoBERTa for French."""

from __future__ import annotations

from models.families.roberta import Family as Roberta


class Family(Roberta):
    pass
