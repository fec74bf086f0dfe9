"""The site that `make docs` builds: every page under docs/, and the reference from the docstrings. It needs no network."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "tracegrad"
author = "the tracegrad authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.extensions.programs", "docs.extensions.gallery", "docs.extensions.docstrings"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["extensions"]
myst_heading_anchors = 3                # links of the form page.md#a-heading
html_theme = "alabaster"
html_theme_options = {"description": "Source-transforming autograd for any OpenCL device",
                      "page_width": "96%", "body_max_width": "72em", "sidebar_width": "16em"}
html_copy_source = False
smartquotes = False                     # quotes in docstrings are Python's
html_show_sphinx = False
highlight_language = "none"
autodoc_member_order = "groupwise"
autodoc_typehints = "none"              # signatures as they stand in the code are long; help() shows the types
python_use_unqualified_type_names = True
