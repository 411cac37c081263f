"""Sphinx configuration; ``sphinx-build -n -W docs build/docs`` must be clean."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import generate_reference

# The pages of verbs, YAML keys and plug-ins are written anew at each build, so they always say what the code says.
generate_reference.write()

project = "Plait"
author = "The Plait authors"
project_copyright = "2026, The Plait authors"
try:
    release = importlib.metadata.version("plait")
except importlib.metadata.PackageNotFoundError:
    from plait import __version__ as release
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.doctest"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "reference/generated/*"]
nitpicky = True
keep_warnings = True
root_doc = "index"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Names without a page of ours. There is no network at build time, so no intersphinx: names of PyTorch, NumPy and the
# standard library stay plain text; so do type variables and type aliases, which autodoc cannot resolve.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|np|pydantic|typer|starlette)(\..*)?"),
    ("py:.*", r"(collections|pathlib|typing|types|enum|contextlib|asyncio|datetime)\..*"),
    ("py:.*", r"(Path|Any|Literal|Protocol|Iterable|Iterator|Mapping|Sequence|Callable|AsyncIterator|TracebackType)"),
    ("py:.*", r"(str|int|float|bool|bytes|object|tuple|list|dict|set|frozenset|type|None|\.\.\.|optional)"),
    ("py:.*", r"(plait\.hardware\.values\.)?(T|T_co|Tensor|Module|Optimizer|Dataset)"),
]

html_theme = "furo"
html_title = "Plait"
html_show_sourcelink = False
