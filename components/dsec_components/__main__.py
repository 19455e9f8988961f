"""Entry of the dsec component package: `pulumi package add <this folder>` runs it."""

from dsec_components.host import main

if __name__ == "__main__":
    main()
