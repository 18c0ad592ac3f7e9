"""`python -m fairjax` is the `fairjax` command."""

import sys

from fairjax.cli import main

sys.exit(main())
