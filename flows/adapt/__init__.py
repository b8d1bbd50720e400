"""`pretrieve adapt`: a retriever that is adapted to a collection without queries and judgements."""
