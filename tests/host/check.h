// What the test programs share. A test is an exported function that gives the number of its failures.
#pragma once

#include <initializer_list>
#include <stdio.h>
#include <stdlib.h>

#define TEST(name) extern "C" __attribute__((visibility("default"))) int name()
#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            ++failures;                                                              \
            if (failures <= 5) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                            \
    } while (0)
#define CHECK_AT(index, got, want)                                                                              \
    do {                                                                                                        \
        if (!((got) == (want))) {                                                                               \
            ++failures;                                                                                         \
            if (failures <= 5)                                                                                  \
                fprintf(stderr, "%s:%d: at %d: got %g, want %g\n", __FILE__, __LINE__, int(index), double(got), \
                        double(want));                                                                          \
        }                                                                                                       \
    } while (0)

/// Device memory of exactly n elements, freed at the end of its block; a copy is a view. Stands for a pointer in launches.
template <class T>
struct Buffer {
    T* data;
    int size;
    bool owner = true;
    explicit Buffer(int n) : size(n) {
        if (hipMalloc(&data, n * sizeof(T)) != hipSuccess) abort();
        for (int i = 0; i < n; ++i) data[i] = T();
    }
    Buffer(const Buffer& other) : data(other.data), size(other.size), owner(false) {}
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
        if (owner) (void)hipFree(data);
    }
    T& operator[](int i) { return data[i]; }
    operator T*() { return data; }
};
