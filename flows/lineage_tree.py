"""The lineage of an artifact as a tree for the terminal and for model cards."""

from __future__ import annotations

from rich.tree import Tree

from storage.artifact import Manifest
from storage.store.lookup import lookup, parameter_inputs
from storage.store.store import Store


def lineage_tree(manifest: Manifest, store: Store) -> Tree:
    """Return the tree of what an artifact was built from; the inputs of each artifact are shown once."""
    shown: set[str] = set()

    def grow(tree: Tree, parent: Manifest) -> None:
        for parameter, reference in parameter_inputs(parent):
            branch = tree.add(f"{parameter}: {reference}{' (above)' if reference in shown else ''}")
            if reference not in shown:
                shown.add(reference)
                if (inner := lookup(reference, store)) is not None:
                    grow(branch, inner)

    tree = Tree(f"built from: {manifest.reference}")
    grow(tree, manifest)
    return tree
