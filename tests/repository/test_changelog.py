"""The changelog names every released version, newest first, and the version that is next."""

import re

import pytest
from packaging.version import Version

import distributions
import pages

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def mistakes(text, tags, version):
    """Return what speaks against a changelog, given the tags of releases and today's version."""
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    found = []
    if headings[:1] != ["[Unreleased]"]:
        found.append("begins with another section than [Unreleased]")
    sections = []
    for heading in headings:
        if match := re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", heading):
            sections.append(match[1])
        elif heading != "[Unreleased]":
            found.append(f"not a version and a date: {heading}")
    if sections != sorted(sections, key=Version, reverse=True):
        found.append("versions out of order")
    released = {tag.removeprefix("v") for tag in tags}
    found += [f"tag without a section: v{one}" for one in sorted(released - set(sections))]
    if released:
        found += [f"section without a tag: {one}" for one in sections if one not in released | {version}]
        if version not in released and Version(version) <= max(map(Version, released)):
            found.append(f"{version} is no later than the last release")
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0]
    if version not in sections and "\n- " not in unreleased:
        found.append(f"nothing about {version}")
    found += [
        f"no kind of change: {kind}"
        for kind in re.findall(r"^### (.*)$", text, re.MULTILINE)
        if kind not in KINDS
    ]
    links = set(re.findall(r"^\[(.+)\]: https://", text, re.MULTILINE))
    found += [f"heading without a link: {name}" for name in ["Unreleased", *sections] if name not in links]
    return found


@pytest.mark.skipif(not (pages.ROOT / ".git").exists(), reason="needs the tags that git has")
def test_the_changelog_agrees_with_the_tags_and_the_version():
    text, version = pages.text_of("CHANGELOG.md"), distributions.version()
    assert mistakes(text, distributions.release_tags(), version) == []
