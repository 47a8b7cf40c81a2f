// As emulator.hpp, with half precision.
#pragma once

#define TVMDML_HALF
#include "emulator.hpp"
