# Declarations of the C functions that _codecs.py uses, for Cython.

cdef extern from *:
    """
    /* CRC-32C of short buffers by the processor's own instruction, if it has one, since a call of the package crc32c
       would cost more than the checksum. Long buffers are left to the package, which sums three streams at a time. */
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__)
    static int sums_here(void) { return __builtin_cpu_supports("sse4.2"); }

    __attribute__((target("sse4.2")))
    static uint32_t sum_here(uint32_t crc, const unsigned char *bytes, size_t size) {
        uint64_t sum = (uint32_t)~crc, word;
        for (; size >= 8; bytes += 8, size -= 8) {
            memcpy(&word, bytes, 8);
            sum = __builtin_ia32_crc32di(sum, word);
        }
        for (; size; bytes++, size--)
            sum = __builtin_ia32_crc32qi((uint32_t)sum, *bytes);
        return ~(uint32_t)sum;
    }
    #else
    static int sums_here(void) { return 0; }
    static uint32_t sum_here(uint32_t crc, const unsigned char *bytes, size_t size) {
        (void)bytes, (void)size;
        return crc;
    }
    #endif
    """
    bint sums_here() nogil
    unsigned int sum_here(unsigned int crc, const unsigned char *bytes, size_t size) nogil

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    object PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t count)
    object PyMemoryView_FromMemory(char *memory, Py_ssize_t size, int flags)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    int PyBUF_READ
