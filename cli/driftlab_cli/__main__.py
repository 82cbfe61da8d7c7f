"""``python -m driftlab_cli``: the command line where no script is installed."""

from driftlab_cli.main import main

main()
