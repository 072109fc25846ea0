"""The native libraries of this package and their loader, which the build puts here."""
