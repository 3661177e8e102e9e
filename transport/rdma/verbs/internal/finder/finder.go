// Package finder says where package verbs finds the functions of libibverbs and librdmacm. Package fake, which stands for
// these libraries in tests, changes it.
package finder

import "unsafe"

// Function, if it is set, is a C function (os_find in shim.h) that finds the functions of the libraries by name. It is
// set before the first device is opened.
var Function unsafe.Pointer
