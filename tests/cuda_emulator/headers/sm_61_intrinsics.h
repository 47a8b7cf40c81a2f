// What it declares, the sources that include it define.
