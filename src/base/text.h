// Text from outside - of another process, a peer, a record - made fit for messages, logs and JSON.
// Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace unreft {

// Of reasons and messages that other processes send.
inline constexpr size_t kTextBytesMax = 4096;

// Bytes of the UTF-8 sequence that `text`, which is not empty, begins with; 0 when it does not
// begin with one.
size_t Utf8SequenceBytes(std::string_view text);

// Valid UTF-8 without control characters, on one line: what is no UTF-8, and each control
// character, is written as \xNN, \n, \r or \t. Cut between characters, with "..." at the end, to at
// most `bytes_max` bytes, which are 3 or more. Text that is clean stays as it is.
std::string CleanText(std::string_view text, size_t bytes_max = SIZE_MAX);

}  // namespace unreft
