"""Reads pages of HTML: elements with their attributes, tables, and embedded JSON."""

import json
import re
from html.parser import HTMLParser

_VOID = ("meta", "link", "img", "input", "br")


class Page(HTMLParser):
    """A parsed page: its text without scripts and styles, its elements, and the rows of its tables.

    :ivar elements: name and attributes of each element.
    :ivar tables: for each table its rows, each a list of (text, attributes) of the cells.
    """

    def __init__(self, source):
        super().__init__()
        self.source = source
        self.elements, self.tables, self._texts, self._open = [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(("", dict(attrs)))

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if {"script", "style"} & {*self._open}:
            return
        self._texts.append(data)
        if {"td", "th"} & {*self._open}:
            text, attrs = self.tables[-1][-1][-1]
            self.tables[-1][-1][-1] = text + data.strip(), attrs

    @property
    def text(self):
        """The text in one line."""
        return " ".join(" ".join(self._texts).split())

    def rows(self, number=0):
        """The texts of a table's cells, row by row."""
        return [[text for text, _ in row] for row in self.tables[number]]

    def constant(self, name):
        """The value of a constant of a script, written as JSON."""
        _, _, source = self.source.partition(f"const {name} = ")
        return json.JSONDecoder().raw_decode(source)[0]

    def named(self, tag):
        """The attributes of the elements of a name."""
        return [attrs for name, attrs in self.elements if name == tag]

    def foreign_sources(self):
        """Addresses that the page would load: in attributes, and in style sheets."""
        loads = [
            value
            for tag, attrs in self.elements
            for name, value in attrs.items()
            if name in ("src", "srcset", "data", "action", "poster") or (name == "href" and tag != "a")
        ]
        styles = "".join(re.findall(r"<style>(.*?)</style>", self.source, re.DOTALL))
        return loads + re.findall(r"url\([^)]*\)|@import[^;]*", styles)
