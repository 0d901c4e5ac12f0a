/* SPDX-License-Identifier: MIT */
/* The functions of the op table that this folder has; the others are NULL, which only its tests may
 * see (they say so). To become PL_KERNEL_LIST when all are there. A line a family of files. */
#ifndef PL_KERNELS_CUDA_READY_CUH
#define PL_KERNELS_CUDA_READY_CUH

/* X(function, struct of arguments) */
#define PL_CUDA_READY(X)                                                                           \
    X(add, add)                                                                                    \
    X(relu_forward, relu)                                                                          \
    X(relu_backward, relu)                                                                         \
    X(linear_forward, linear)                                                                      \
    X(linear_backward, linear)                                                                     \
    X(matmul, matmul)                                                                              \
    X(conv2d_forward, conv2d)                                                                      \
    X(conv2d_backward, conv2d)                                                                     \
    X(batchnorm_sums, batchnorm)                                                                   \
    X(batchnorm_forward, batchnorm)                                                                \
    X(batchnorm_back_sums, batchnorm)                                                              \
    X(batchnorm_backward, batchnorm)                                                               \
    X(max_pool2d_forward, pool2d)                                                                  \
    X(max_pool2d_backward, pool2d)                                                                 \
    X(avg_pool2d_forward, pool2d)                                                                  \
    X(avg_pool2d_backward, pool2d)                                                                 \
    X(widen, half)                                                                                 \
    X(narrow, half)                                                                                \
    X(unary_forward, unary)                                                                        \
    X(unary_backward, unary)                                                                       \
    X(binary_forward, binary)                                                                      \
    X(binary_backward, binary)                                                                     \
    X(affine, affine)                                                                              \
    X(reduce_forward, reduce)                                                                      \
    X(reduce_backward, reduce)                                                                     \
    X(dropout, dropout)                                                                            \
    X(sgd, sgd)                                                                                    \
    X(adam, adam)                                                                                  \
    X(grad_stats, grad_stats)                                                                      \
    X(copy, copy)                                                                                  \
    X(arange, arange)                                                                              \
    X(mse_forward, mse)                                                                            \
    X(mse_backward, mse)                                                                           \
    X(softmax_forward, softmax)                                                                    \
    X(softmax_backward, softmax)                                                                   \
    X(normalize_forward, normalize)                                                                \
    X(normalize_backward, normalize)                                                               \
    X(correct, correct)                                                                            \
    X(embedding_forward, embedding)                                                                \
    X(embedding_backward, embedding)                                                               \
    X(cross_entropy_forward, cross_entropy)                                                        \
    X(cross_entropy_backward, cross_entropy)                                                       \
    X(layernorm_forward, layernorm)                                                                \
    X(layernorm_backward, layernorm)                                                               \
    X(attention_forward, attention)                                                                \
    X(attention_backward, attention)

#endif
