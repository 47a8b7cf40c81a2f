// A program in C++ that runs a pack's kernels: through the header, and a library's function through the API of tvm-ffi.
//
//     tvmdml pack header ops.tvmdml -o folder
//     LIBRARIES="$(tvm-ffi-config --ldflags --libs) -Wl,-rpath,$(tvm-ffi-config --libdir)"
//     c++ -std=c++17 -I folder $(tvm-ffi-config --cxxflags) example.cpp $LIBRARIES -ldl -o example
//     ./example FOLDER LIBRARY SYMBOL INTEGER...
//
// FOLDER has the header's libraries, and LIBRARY is one of them: folder/ops-x86-64-v3-element_wise_round.so. SYMBOL is a kernel in it, and
// the INTEGERs are what it is launched with: `tvmdml pack inspect ops.tvmdml --json` prints both. tvmdml/packs/README.md builds the pack.
#define OPS_IMPLEMENTATION  // in one file of a program
#include "ops.h"

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <vector>

namespace ffi = tvm::ffi;

static void check(int status) {
    if (status != 0) throw std::runtime_error(ops_error());
}

static void with_the_header(const char *folder) {
    check(ops_open(folder));
    std::vector<float> scores(4 * 1000), best(4 * 3);
    std::vector<uint32_t> where(4 * 3);
    for (std::size_t i = 0; i < scores.size(); i++) scores[i] = static_cast<float>(i * 7919 % 10007) / 8;
    check(ops_top_k1_f32_4x1000_axis1_k3_decreasing(scores.data(), best.data(), where.data()));
    for (std::size_t i = 0; i < best.size(); i++) std::cout << best[i] << " at " << where[i] << "\n";
    ops_close();
}

// A kernel takes its tensors, then its temporaries (this one has none), then integers: the pack has them with the operation.
static void with_tvm_ffi(const char *library, const char *symbol, const std::vector<int64_t> &integers) {
    ffi::Module module = ffi::Module::LoadFromFile(library);
    ffi::Function kernel = module->GetFunction(symbol).value();
    std::vector<float> input(4 * 3), output(4 * 3);
    for (std::size_t i = 0; i < input.size(); i++) input[i] = static_cast<float>(i) / 2 - 3;
    int64_t sizes[] = {4, 3}, strides[] = {3, 1};
    DLTensor tensors[] = {
        {input.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, sizes, strides, 0},
        {output.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, sizes, strides, 0},
    };
    std::vector<ffi::AnyView> arguments;
    for (DLTensor &tensor : tensors) arguments.emplace_back(&tensor);
    for (int64_t integer : integers) arguments.emplace_back(integer);
    ffi::Any result;
    kernel.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    for (float value : output) std::cout << value << "\n";
}

int main(int count, char **arguments) {
    if (count < 4) {
        std::cerr << "usage: " << arguments[0] << " FOLDER LIBRARY SYMBOL INTEGER...\n";
        return 2;
    }
    try {
        with_the_header(arguments[1]);
        std::vector<int64_t> integers;
        for (int i = 4; i < count; i++) integers.push_back(std::atoll(arguments[i]));
        with_tvm_ffi(arguments[2], arguments[3], integers);
    } catch (const std::exception &error) {
        std::cerr << "example: " << error.what() << "\n";
        return 1;
    }
    return 0;
}
