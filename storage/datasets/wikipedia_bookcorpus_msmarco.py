"""Wikipedia, BookCorpus and MS MARCO's passages as text to pre-train on: a folder for each.

Ids are wikipedia-ID, bookcorpus-PLACE and msmarco-PID; the readers of these names say what the folders hold.
"""

from storage.datasets import bookcorpus, msmarco, wikipedia
from storage.datasets.support.joined_texts import Joined

_joined = Joined("wikipedia_bookcorpus_msmarco", {"wikipedia": wikipedia, "bookcorpus": bookcorpus, "msmarco": msmarco})
FETCH, files, texts, queries, qrels = _joined.fetch, _joined.files, _joined.texts, _joined.topics, _joined.topics
