// In place of libc++'s own: cudafe++ of nvcc takes clang's vectors of booleans for arrays of bytes, and stops at an
// assertion about their size. With these two switches libc++ 19 has the loops without vectors.
#pragma once
#define _LIBCPP_HAS_ALGORITHM_VECTOR_UTILS 0
#define _LIBCPP_VECTORIZE_ALGORITHMS 0
