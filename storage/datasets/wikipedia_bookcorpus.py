"""Wikipedia and BookCorpus as text for pre-training, as BERT's: the folders `wikipedia` and `bookcorpus`.

Ids are wikipedia-ID and bookcorpus-NUMBER; the loaders of these names describe the folders' files.
"""

from storage.datasets import bookcorpus, wikipedia
from storage.datasets.support.joined_texts import JoinedTexts

_joined = JoinedTexts("wikipedia_bookcorpus", {"wikipedia": wikipedia, "bookcorpus": bookcorpus})
FETCH, files, texts, queries, qrels = _joined.fetch, _joined.files, _joined.texts, _joined.topics, _joined.topics
