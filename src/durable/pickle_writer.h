// PickleWriter: a pickle of protocol 2 that is appended to, value by value, in the order in which
// Python's reader puts them on its stack. It has only what torch.load(weights_only=True) reads too.
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace unreft::durable {

class PickleWriter {
 public:
  // Of an int that BigInt takes, as torch's reader knows no longer one.
  static constexpr size_t kBigIntBytesMax = 255;
  // Of a str, and of what Bytes makes one of.
  static constexpr size_t kStringBytesMax = UINT32_MAX;

  PickleWriter();

  // Each adds one value.
  void None();
  void Bool(bool value);
  void Int(int64_t value);
  void Uint(uint64_t value);
  // In two's complement, little-endian; at most kBigIntBytesMax bytes.
  void BigInt(std::string_view bytes);
  void Float(double value);
  // A str: valid UTF-8, except that a surrogate is there as three bytes. At most kStringBytesMax.
  void String(std::string_view text);
  // The same; what was added before by this function is written as a reference of a few bytes.
  void SharedString(std::string_view text);
  // A bytes, or a bytearray. At most kStringBytesMax / 2.
  void Bytes(std::string_view bytes, bool is_mutable);
  // What a module has under that name; written once, then as a reference.
  void Global(std::string_view module, std::string_view name);

  // What is added between the two is what the value contains.
  void BeginTuple();
  void EndTuple();
  void BeginList();
  void EndList();
  // Key, value, key, value, ...
  void BeginDict();
  void EndDict();
  // Items that are set in the last value, which stays: a dict, or what derives from one.
  void BeginPairs();
  void EndPairs();

  // A function and the tuple of its arguments become what it returns.
  void Reduce();
  // A class and a tuple become a new object of the class, whose __init__ has not run.
  void NewObject();
  // An object and its state become the object in this state.
  void Build();
  // A tuple becomes that which the reader knows by it, as a storage of a tensor.
  void PersistentId();

  // Ends the pickle: one value has been added.
  std::string Finish() &&;

 private:
  // Where in the reader's memo something is, by its text.
  using Memo = std::map<std::string, uint32_t, std::less<>>;
  // Adds a reference to what was remembered by that text; false, with nothing added, if nothing
  // was.
  bool Recall(const Memo& memo, std::string_view text);
  // Puts the last value into the reader's memo.
  void Remember(Memo& memo, std::string_view text);

  std::string out_;
  uint32_t remembered_ = 0;
  Memo globals_;
  Memo strings_;
};

}  // namespace unreft::durable
