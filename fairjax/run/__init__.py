"""One run: its workdir, its stages, what it exports and imports."""

import sys

import fairjax

sys.modules[__name__].__class__ = fairjax.CallablePackage
