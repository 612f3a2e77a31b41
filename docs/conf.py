"""How `make docs` builds the site.

The sources are the pages as they lie in the repository, and the source folder is its root, so that every relative link
works on the site as it does where the repository is browsed. What is generated is in `reference.py` and `notebooks.py`
beside this file. Nothing here or in the pages asks for the network.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import counterpoise

logging.getLogger("alembic").setLevel(logging.WARNING)  # Flower's database: it tells which plugins it has

project = "Counterpoise"
copyright = "the authors of Counterpoise"
version = release = counterpoise.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "notebooks", "reference"]
root_doc = "docs/index"
include_patterns = ["docs/**", "examples/notebooks/*", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"]
exclude_patterns = [".*", "build", "data", "dist", "peers", "runs"]

# Docstrings write names in single backticks. Types in signatures are torch's, numpy's or internal: no page has them.
default_role = "code"
smartquotes = False  # it would make a dash of the two hyphens before an option
nitpick_ignore_regex = [("py:.*", ".*")]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88

# GitHub's anchors for headings, so that `page.md#a-heading` is checked and works in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"

html_theme = "furo"
html_title = f"Counterpoise {version}"
html_extra_path = ["site/index.html"]
html_static_path = ["site/style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
