"""Settings of Sphinx; `make docs` builds the site."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

import dspp  # noqa: E402 - after the path of the extension

project = "dspp"
author = "The dspp developers"
release = version = dspp.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "dspp_docs"]
exclude_patterns = ["_build", "_ext", "results"]
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!dspp\.).*"),  # names of other projects, whose inventories are not downloaded
]
suppress_warnings = ["mystnb.unknown_mime_type", "config.cache"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = os.environ.get("DSPP_DOCS_EXECUTION", "force")  # "cache" while writing, "off" to see the text only
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing is loaded from elsewhere

autodoc_typehints = "none"  # shapes are in the text
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autosummary_generate = False
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_attr_annotations = False
default_role = "code"  # docstrings write code in single backticks

html_theme = "pydata_sphinx_theme"
html_title = "dspp"
html_static_path = ["_static"]
html_css_files = ["dspp.css"]
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "theory": [], "reproduction": []}
project_copyright = author
