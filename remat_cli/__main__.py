"""`python -m remat_cli` and the installed command `remat`."""

import sys

try:
    from typing import NoReturn

    from remat_cli.machine.interruption import EXIT_CODE, end_undisturbed, take_as_ctrl_c, tell
except KeyboardInterrupt:  # before the exit code and its message are imported
    sys.stderr.write("error: interrupted\n")
    sys.exit(130)


def main() -> NoReturn:
    """Run the command line, which can be interrupted from here on.

    Signals are handled before any large import.
    """
    try:
        try:
            take_as_ctrl_c()
            from remat_cli.machine.cores import usable_cores
            from remat_cli.machine.system_limits import leave_threads

            leave_threads(usable_cores())
            from remat_cli.cli import main as call

            call()
        finally:
            end_undisturbed()
    except KeyboardInterrupt:  # before or after the command line handles Ctrl-C itself
        end_undisturbed()
        tell()
        sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
