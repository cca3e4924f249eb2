# Device code that a target carries as bytes: compiled by nvcc, loaded by the CUDA runtime of the
# process that runs it.
#
#   unreft_cuda_image(target source.cu symbol [header...])
#     -> `symbol` and `symbol_bytes` in the target: a fat binary for the architectures below.
#
# UNREFT_NVCC is the compiler, or empty where none works: then UNREFT_NVCC_NOTE says why.

# Those of data centres, each for all of its generation; PTX, which drivers compile, for the rest.
set(UNREFT_CUDA_CODE
    -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90
    -gencode arch=compute_100,code=sm_100 -gencode arch=compute_80,code=compute_80)

option(UNREFT_WITH_NVCC "Compile device code if an nvcc is found" ON)

function(_unreft_find_nvcc)
  set(UNREFT_NVCC "" PARENT_SCOPE)
  if(NOT CUDAToolkit_FOUND)
    set(UNREFT_NVCC_NOTE "no CUDA toolkit" PARENT_SCOPE)
    return()
  endif()
  if(NOT UNREFT_WITH_NVCC)
    set(UNREFT_NVCC_NOTE "built with UNREFT_WITH_NVCC=OFF" PARENT_SCOPE)
    return()
  endif()
  if(NOT CUDAToolkit_NVCC_EXECUTABLE)
    set(UNREFT_NVCC_NOTE "the CUDA toolkit has no nvcc" PARENT_SCOPE)
    return()
  endif()
  # It may not know the host's compiler, or not have all of its parts.
  set(probe ${PROJECT_BINARY_DIR}/nvcc_probe)
  file(WRITE ${probe}.cu "#include <array>\n__global__ void Kernel(int* at) { *at = 1; }\n")
  execute_process(
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 --fatbin ${UNREFT_CUDA_CODE} ${probe}.cu
            -o ${probe}.fatbin
    RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT result EQUAL 0)
    string(STRIP "${said}" said)
    set(UNREFT_NVCC_NOTE "nvcc does not work: ${said}" PARENT_SCOPE)
    return()
  endif()
  set(UNREFT_NVCC ${CUDAToolkit_NVCC_EXECUTABLE} PARENT_SCOPE)
  set(UNREFT_NVCC_NOTE "" PARENT_SCOPE)
endfunction()
_unreft_find_nvcc()
file(WRITE ${PROJECT_BINARY_DIR}/nvcc_note.txt "${UNREFT_NVCC_NOTE}")
if(CUDAToolkit_FOUND AND NOT UNREFT_NVCC)
  message(STATUS
    "No device_checksum and no samples of tensors on a device: ${UNREFT_NVCC_NOTE}")
endif()

function(unreft_cuda_image target source symbol)
  set(image ${CMAKE_CURRENT_BINARY_DIR}/${symbol})
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  add_custom_command(
    OUTPUT ${image}.c BYPRODUCTS ${image}.fatbin
    COMMAND ${UNREFT_NVCC} -std=c++20 -O3 --fatbin ${UNREFT_CUDA_CODE} -I ${PROJECT_SOURCE_DIR}/src
            ${source} -o ${image}.fatbin
    COMMAND ${CMAKE_COMMAND} -DFILE=${image}.fatbin -DOUT=${image}.c -DSYMBOL=${symbol}
            -P ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake
    DEPENDS ${source} ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake
    COMMENT "Compiling device code ${symbol}" VERBATIM)
  target_sources(${target} PRIVATE ${image}.c)
endfunction()

# A program for a machine with a GPU: in gpu/, beside what the bundle puts into lib/.
function(unreft_gpu_program target)
  set_target_properties(${target} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu
    # As in the bundle, by the old tag: see UnreftTargets.
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH $ORIGIN/../lib)
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  _unreft_defaults(${target})
endfunction()
