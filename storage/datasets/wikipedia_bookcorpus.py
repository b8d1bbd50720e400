"""Wikipedia and BookCorpus as text to pre-train on, as BERT's: the folders `wikipedia` and `bookcorpus`.

Ids are wikipedia-ID and bookcorpus-PLACE; the readers of these names say what the folders hold.
"""

from storage.datasets import bookcorpus, wikipedia
from storage.datasets.support.joined_texts import Joined

_joined = Joined("wikipedia_bookcorpus", {"wikipedia": wikipedia, "bookcorpus": bookcorpus})
FETCH, files, texts, queries, qrels = _joined.fetch, _joined.files, _joined.texts, _joined.topics, _joined.topics
