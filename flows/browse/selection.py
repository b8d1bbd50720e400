"""The collection and the two systems that a page compares, by the parameters of its address."""

from __future__ import annotations

from collections.abc import Mapping

from flows.browse.contents import Collection, Contents, known


class Selection:
    """The collection and the two systems that a request names; the run's own where it names none."""

    def __init__(self, given: Mapping[str, str], contents: Contents) -> None:
        by_name = {collection.name: collection for collection in contents.collections}
        name = known(given.get("in") or contents.collections[0].name, by_name, "collection")
        self.collection: Collection = by_name[name]
        defaults = self.collection.pair(contents.preferred)
        first, second = (self._system(given.get(side), contents) for side in ("a", "b"))
        self.pair = (first or defaults[0], second or defaults[1])

    def _system(self, name: str | None, contents: Contents) -> str | None:
        """Return the system of this name; None for one of another collection, from which the user may have come."""
        if name:
            known(name, [system for collection in contents.collections for system in collection.systems], "system")
        return name if name in self.collection.systems else None

    def as_parameters(self) -> dict[str, str]:
        """Return the selection as parameters of a link."""
        return {"in": self.collection.name, "a": self.pair[0], "b": self.pair[1]}
