"""`python -m rocmbuild` is `rocmbuild`."""

import sys

from rocmbuild.cli import main

if __name__ == "__main__":
    sys.exit(main())
