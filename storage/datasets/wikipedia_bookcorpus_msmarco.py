"""Wikipedia, BookCorpus and MS MARCO's passages as text for pre-training: a folder for each.

Ids are wikipedia-ID, bookcorpus-NUMBER and msmarco-PID; the loaders of these names describe the folders' files.
"""

from storage.datasets import bookcorpus, msmarco, wikipedia
from storage.datasets.support.joined_texts import JoinedTexts

_joined = JoinedTexts(
    "wikipedia_bookcorpus_msmarco", {"wikipedia": wikipedia, "bookcorpus": bookcorpus, "msmarco": msmarco}
)
has_titles, TITLES_FROM = _joined.has_titles, _joined.titles_from.replace("{folder}", "{folder}/msmarco")
FETCH, files, texts, queries, qrels = _joined.fetch, _joined.files, _joined.texts, _joined.topics, _joined.topics
