// Runs functions of a library by name: driver LIBRARY FUNCTION... Exit 1 when one of them reports failures.
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char** words) {
    if (count < 3) return 2;
    void* library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int failed = 0;
    for (int i = 2; i < count; ++i) {
        int (*function)() = reinterpret_cast<int (*)()>(dlsym(library, words[i]));
        if (!function) {
            fprintf(stderr, "%s\n", dlerror());
            return 2;
        }
        const int failures = function();
        printf("%s %d\n", words[i], failures);
        if (failures) failed = 1;
    }
    dlclose(library);
    return failed;
}
