"""What pyproject.toml cannot say: conf/ lies at the top of the repository, and in a wheel inside the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfiguration(build_py):
    """Copies conf/ to triptych/conf; an editable installation reads it where it lies."""

    def run(self) -> None:
        """Build the modules, then put the configuration files beside them."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "triptych" / "conf"
        shutil.rmtree(target, ignore_errors=True)  # an earlier build may have left files that are gone by now
        for file in sorted(Path("conf").rglob("*.yaml")):
            copy = target / file.relative_to("conf")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


setup(cmdclass={"build_py": BuildWithConfiguration})
