"""The package read from its syntax trees: imports go one way, one Cholesky, nothing that runs what it reads."""

import ast
import re
from collections.abc import Iterator, Set
from graphlib import TopologicalSorter
from pathlib import Path

import dspp.errors
from dspp import predictive
from dspp.likelihoods import LIKELIHOODS, Likelihood
from dspp.outcomes import OUTCOMES, Outcome

PACKAGE = Path(dspp.errors.__file__).parent

# What stands before what. Files and folders that are not named here (estimators, command line, …) come after all of it.
ORDER = [
    "errors",
    "extras",
    "engines",
    "registry",
    "derivatives",
    "config",
    "notes",
    "pipelines",
    "storage",
    "codec",
    "history",
    "progress",
    "numbers",
    "notebook",
    "batches",
    "simulation",
    "table",
    "encoding",
    "seen",
    "trees",
    "gp",
    "quadrature",
    "plots",
    "predictive",
    "features",
    "likelihoods",
    "model",
    "presets",
    "folds",
    "guard",
    "settings",
    "objectives",
    "metrics",
    "calibration",
    "outcomes",
    "training",
    "members",
    "prepare",
    "fitted",
    "evaluate",
    "novelty",
    "modelfile",
    "fitting",
    "estimators",
    "scorers",
    "tuning",
    "report",
    "cli",
    "mlflow",
    "skpro",
]
GP_ORDER = ["native", "linalg", "kernels", "compiled", "means", "inducing", "conditional", "layer"]


def modules() -> dict[str, ast.Module]:
    """Syntax trees by dotted name, without the package's own name: "gp.layer"; a folder's own file is "gp"."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(), str(path))
    return trees


TREES = modules()


def imports(name: str, tree: ast.Module) -> Iterator[str]:
    """The modules of the package that this one imports, type checking and function bodies included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import; write it out, so that this test can read it"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in full:
            if target.split(".")[0] == "dspp":
                yield _longest_module(target.removeprefix("dspp").removeprefix("."))


def _longest_module(target: str) -> str:
    while target not in TREES and "." in target:
        target = target.rpartition(".")[0]
    return target if target in TREES else ""  # "": names of the package itself


def rank(part: str) -> int:
    return ORDER.index(part) if part in ORDER else len(ORDER)


def test_there_is_something_to_test() -> None:
    assert {"errors", "gp.conditional", "model", "objectives"} <= TREES.keys()
    assert set(imports("model", TREES["model"])) >= {"config", "gp.layer", "likelihoods", "quadrature"}


def test_imports_go_one_way() -> None:
    for name, tree in TREES.items():
        part = name.split(".")[0]
        if not name:
            continue  # the package's own file may gather everything
        for target in imports(name, tree):
            other = target.split(".")[0]
            if other == part:
                continue
            assert other, f"{name} imports from dspp itself, which imports everything"
            assert rank(other) < rank(part) or rank(other) == rank(part) == len(ORDER), f"{name} imports {target}"


def test_imports_inside_gp_go_one_way() -> None:
    for i, name in enumerate(GP_ORDER):
        inside = {t.removeprefix("gp.") for t in imports(name, TREES[f"gp.{name}"]) if t.startswith("gp.")}
        assert not inside & set(GP_ORDER[i:]), f"gp.{name} imports {inside}"


def test_there_are_no_circles() -> None:
    graph = {name: set(imports(name, tree)) - {name} for name, tree in TREES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)  # raises CycleError


def test_gp_knows_nothing_of_settings_and_names_of_models() -> None:
    for name in TREES:
        if name.startswith("gp."):
            outside = {t for t in imports(name, TREES[name]) if not t.startswith("gp.")}
            assert outside <= {"errors", "registry", "derivatives"}, f"{name} imports {outside}"


# ---------------------------------------------------------------- one Cholesky


def dotted(node: ast.expr) -> str:
    """`torch.linalg.cholesky` of the expression that reads so."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def factorisations(tree: ast.AST) -> int:
    """Uses of a library's Cholesky, under whatever name it was imported."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("cholesky", "cholesky_ex", "cho_factor"):
            count += dotted(node) != "maths.cholesky"  # the mixture's own, counted below
        if isinstance(node, ast.ImportFrom) and node.module != "dspp.predictive.maths":
            count += sum("chol" in alias.name or "cho_" in alias.name for alias in node.names)
    return count


def test_kernel_matrices_are_factorised_in_one_file() -> None:
    found = {name for name, tree in TREES.items() if factorisations(tree)}
    assert found == {"gp.linalg"}, found


def test_the_factor_of_the_outputs_covariance_stays_with_the_mixture() -> None:
    users = set()
    for name, tree in TREES.items():
        used = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)}
        if any(call.endswith("cholesky") and not call.endswith("linalg.cholesky") for call in used):
            users.add(name)
    assert users <= {"predictive.multivariate", "predictive.maths"}, users


# ---------------------------------------------------------------- nothing that runs what it reads

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "runpy"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {"torch.load", "torch.jit.load", "builtins.eval", "builtins.exec"}


# Processes that we started ourselves, which read what we wrote a moment ago; joblib.load stays forbidden.
LOKY = "joblib.externals.loky.backend"
ALLOWED = {
    "engines": {
        f"{LOKY}.process.LokyProcess",
        f"{LOKY}.reduction.dumps",
        f"{LOKY}.resource_tracker",
        f"{LOKY}.utils.kill_process_tree",
    }
}


def complaints(tree: ast.AST, allowed: Set[str] = frozenset()) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names} - allowed
            if names and (str(node.module).split(".")[0] in FORBIDDEN_MODULES or names & FORBIDDEN_ATTRIBUTES):
                yield f"from {node.module}"
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_CALLS:  # `model.eval()` is an attribute, and fine
            yield node.id
        elif isinstance(node, ast.Attribute) and dotted(node) in FORBIDDEN_ATTRIBUTES:
            yield dotted(node)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield "allow_pickle"


def test_nothing_in_the_package_runs_what_it_reads() -> None:
    for name, tree in TREES.items():
        found = list(complaints(tree, ALLOWED.get(name, frozenset())))
        assert not found, f"{name}: {found}"


def test_the_test_above_can_fail() -> None:
    for line in (
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "f = exec",
        "torch.load(path)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "import joblib",
        "from joblib import load",
        "from joblib.externals.loky import ProcessPoolExecutor, cloudpickle",
    ):
        assert list(complaints(ast.parse(line), ALLOWED["engines"])), line
    assert not list(complaints(ast.parse("model.eval()\njson.load(file)")))


# ---------------------------------------------------------------- what a target is

# Where a likelihood may be named, and where a distribution may be asked what it is. The default of `ModelConfig`, from
# which presets start, names one too.
ABOUT_TARGETS = {"likelihoods", "outcomes", "predictive", "presets"}
DEFAULTS = {"config": ["gaussian"]}


def others() -> Iterator[tuple[str, ast.Module]]:
    """The modules that know nothing of likelihoods and distributions but their interfaces."""
    return ((name, tree) for name, tree in TREES.items() if name and name.split(".")[0] not in ABOUT_TARGETS)


def texts(tree: ast.Module) -> Iterator[str]:
    """The strings of a module that are no docstrings."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def imported(tree: ast.Module) -> set[str]:
    """The names that a module imports from this package."""
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "")[:4] == "dspp")
    return {alias.name for node in froms for alias in node.names}


KINDS_OF_TARGETS = {kind.__name__ for kind in (*LIKELIHOODS.values(), *OUTCOMES.values())}
DISTRIBUTIONS = [kind for kind in vars(predictive).values() if isinstance(kind, type)]


def test_only_likelihoods_outcomes_and_presets_name_a_likelihood() -> None:
    names = re.compile(rf"\b({'|'.join(map(re.escape, LIKELIHOODS))})\b")
    for name, tree in others():
        assert [text for text in texts(tree) if names.search(text)] == DEFAULTS.get(name, []), name
        assert not imported(tree) & KINDS_OF_TARGETS, name


def test_nothing_asks_a_distribution_what_it_is() -> None:
    attributes = {name for kind in DISTRIBUTIONS for name in dir(kind) if not name.startswith("_")}
    kinds = KINDS_OF_TARGETS | {kind.__name__ for kind in (*DISTRIBUTIONS, Likelihood, Outcome)}
    for name, tree in others():
        asking = imported(tree) & kinds
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in ("isinstance", "hasattr"):
                words = {getattr(node, "id", getattr(node, "value", None)) for node in ast.walk(call.args[1])}
                forbidden = asking if call.func.id == "isinstance" else attributes
                assert words.isdisjoint(forbidden), f"{name}, line {call.lineno}"
