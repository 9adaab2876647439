"""Builds HTML and SVG as a tree, so that no text of a stack file can become a tag."""

from xml.etree import ElementTree

Node = ElementTree.Element
Child = Node | str | None


def element(tag: str, *children: Child, **attributes: object) -> Node:
    """Returns an element.

    Args:
        tag: its name.
        children: elements and texts; none is left out.
        attributes: `class_` is `class`, other underscores are hyphens; none is left out.
    """
    words = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items() if value is not None}
    made = ElementTree.Element(tag, words)
    for child in children:
        if isinstance(child, str):
            _append_text(made, child)
        elif child is not None:
            made.append(child)
    return made


def document(root: Node) -> str:
    """Returns the tree as an HTML page."""
    return "<!doctype html>\n" + ElementTree.tostring(root, encoding="unicode", method="html") + "\n"


def _append_text(parent: Node, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
