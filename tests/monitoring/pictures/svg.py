"""Writes SVG elements as text. Coordinates are pixels from the upper left corner."""

from xml.sax.saxutils import escape, quoteattr

# The width of a character as a fraction of the font size: an average that is rather too large.
CHARACTER = 0.62
# The same for bold text.
BOLD = 0.7


def element(name, content="", **attributes):
    """An element. `_` in the name of an attribute stands for `-`."""
    listed = "".join(f" {key.rstrip('_').replace('_', '-')}={quoteattr(number(value))}" for key, value in attributes.items())
    return f"<{name}{listed}>{content}</{name}>" if content else f"<{name}{listed}/>"


def number(value):
    """A float with at most one decimal, or any other value as text."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)


def text(x, y, words, size=12, anchor="start", fill="#24292f", **attributes):
    """One line of text. `y` is its baseline."""
    if size != 12:
        attributes["font_size"] = size
    if anchor != "start":
        attributes["text_anchor"] = anchor
    return element("text", escape(words), x=float(x), y=float(y), fill=fill, **attributes)


def fitted(words, width, size=12, character=CHARACTER):
    """The text, shortened with an ellipsis if it does not fit."""
    most = max(int(width / (size * character)), 1)
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def path(points, closed=False, **attributes):
    """A line through points, or the area that it encloses."""
    listed = " ".join(f"{number(float(x))},{number(float(y))}" for x, y in points)
    return element("polygon" if closed else "polyline", points=listed, **attributes)


def group(parts, x=0.0, y=0.0):
    """A group of elements, moved by x and y."""
    return element("g", "\n".join(parts), transform=f"translate({number(float(x))} {number(float(y))})")


def document(parts, width, height, title):
    """The whole SVG file."""
    head = element("title", escape(title))
    style = element("style", "text { font: 12px system-ui, sans-serif }")
    paper = element("rect", width=float(width), height=float(height), fill="#f4f5f7")
    sizes = {"viewBox": f"0 0 {number(float(width))} {number(float(height))}", "width": float(width), "height": float(height)}
    attributes = {"xmlns": "http://www.w3.org/2000/svg", **sizes, "role": "img", "aria_label": title}
    return element("svg", "\n".join(["", head, style, paper, *parts, ""]), **attributes) + "\n"
