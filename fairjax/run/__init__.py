"""One run: its workdir, its stages, what it exports and imports."""
