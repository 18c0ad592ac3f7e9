"""`python -m fairjax` is the `fairjax` command."""

import sys

from fairjax.cli.main import main

sys.exit(main())
