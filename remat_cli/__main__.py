"""`python -m remat_cli` and the installed command `remat`."""

from remat_cli.cli import main

if __name__ == "__main__":
    main()
