"""Digest of user code (parts of methods, samplers, reward functions), which is part of an experiment's id."""

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from hacpo_core.errors import ConfigError


def code_digest(context: str, module: str) -> str:
    """SHA-256 (hex) of a user's module and of all modules that it imports from its own folder or package, recursively.

    Args:
        context: configuration field that names the module, for messages.
        module: dotted name.

    Raises:
        ConfigError: there is no such module, or it is not valid Python.
    """
    path = _file_of(context, module)
    root = path.parents[len(module.split(".")) - (path.name != "__init__.py")]
    files, todo = set[Path](), [path]
    while todo:
        file = todo.pop()
        if file in files:
            continue
        files.add(file)
        try:
            tree = ast.parse(file.read_bytes(), str(file))
        except SyntaxError as error:
            raise ConfigError(f"{context}: {file}, line {error.lineno}: {error.msg}; fix it") from error
        todo += _imported(tree, file, root)
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda source_file: source_file.relative_to(root).as_posix()):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _file_of(context: str, module: str) -> Path:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{context}: the module {module} cannot be imported ({error}); put it on PYTHONPATH"
        ) from error
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ConfigError(f"{context}: there is no module {module}; put it on PYTHONPATH, or correct its name")
    return Path(spec.origin).absolute()  # not resolve(): a symlink may point outside the tree


def _imported(tree: ast.AST, file: Path, root: Path) -> Iterator[Path]:
    """Files under `root` that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = file.relative_to(root).parent.parts[: None if node.level <= 1 else 1 - node.level]
            base = ".".join([*(package if node.level else ()), *filter(None, [node.module])])
            names = [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
        else:
            continue
        for name in filter(None, names):
            path = root.joinpath(*name.split("."))
            yield from (
                candidate for candidate in (path.with_suffix(".py"), path / "__init__.py") if candidate.is_file()
            )
