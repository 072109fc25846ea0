// All of it as one translation unit: the headers are read once.
#include "atomics.hip"
#include "blocks.hip"
#include "faults.hip"
#include "launches.hip"
#include "numbers.hip"
#include "waves.hip"
