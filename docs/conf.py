"""Configuration of the documentation site: sphinx-build -W docs build/site."""

import importlib.util
import os
import re
import warnings

import dpkern

project = "dpkern"
copyright = "the dpkern developers"
version = release = dpkern.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}
suppress_warnings = ["myst.header", "config.cache"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Pages with a kernel in their first lines are executed; a failing cell fails the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_excludepatterns = [
    *([] if "DPKERN_DATA" in os.environ else ["tutorials/adult.md"]),
    *([] if importlib.util.find_spec("torch") else ["tutorials/torch.md"]),
]
nb_merge_streams = True

autosummary_generate = True
# What the top level has, pages of modules leave out.
autosummary_context = {"top": dpkern.__all__}
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False
default_role = "code"

html_theme = "pydata_sphinx_theme"
html_title = "dpkern"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "collapse_navigation": True,
    "use_edit_page_button": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "default",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {"index": [], "**": ["sidebar-nav-bs"]}

warnings.filterwarnings("ignore", module="dpkern")


def escaped(app, what, name, found, options, lines):
    """Keep |w| and w* in docstrings from being read as markup, literals and examples aside."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "..", ":")):
            parts = re.split(r"(``.*?``|`.*?`)", line)
            parts[::2] = [re.sub(r"(?<!\\)\|", r"\\|", part) for part in parts[::2]]
            lines[number] = "".join(parts)


def setup(app):
    app.connect("autodoc-process-docstring", escaped, priority=400)
