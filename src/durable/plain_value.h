// PlainValue: a value of Python as extras have it (docs/formats/extras.md, "The plain encoding"),
// and as an entry of a durable copy has it again, in torch.save's encoding. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/tensor_spec.h"

namespace unreft::durable {

struct PlainValue;
struct PlainPair;

struct PlainNone {
  friend bool operator==(const PlainNone&, const PlainNone&) = default;
};

// An int that has not room in 64 bits.
struct PlainBigInt {
  std::string bytes;  // two's complement, little-endian
  friend bool operator==(const PlainBigInt&, const PlainBigInt&) = default;
};

struct PlainBytes {
  std::string bytes;
  bool is_mutable = false;  // a bytearray
  friend bool operator==(const PlainBytes&, const PlainBytes&) = default;
};

struct PlainSequence {
  enum class Kind { kList, kTuple, kSet, kFrozenSet };
  Kind kind = Kind::kList;
  std::vector<PlainValue> items;
  friend bool operator==(const PlainSequence&, const PlainSequence&) = default;
};

// In its order.
struct PlainDict {
  std::vector<PlainPair> items;
  // The value under that str; null if there is none.
  const PlainValue* Find(const std::string& key) const;
  friend bool operator==(const PlainDict&, const PlainDict&) = default;
};

// On the host, row-major.
struct PlainTensor {
  Dtype dtype = Dtype::kFloat32;
  std::vector<uint64_t> sizes;
  std::string bytes;
  friend bool operator==(const PlainTensor&, const PlainTensor&) = default;
};

// Any other kind that the plain encoding has, as it is written there.
struct PlainOther {
  std::string kind;  // "OrderedDict", "device", ...
  std::vector<PlainValue> arguments;
  std::vector<PlainValue> items;
  PlainDict pairs;
  friend bool operator==(const PlainOther&, const PlainOther&) = default;
};

struct PlainValue {
  std::variant<PlainNone, bool, int64_t, PlainBigInt, double, std::string, PlainBytes,
               PlainSequence, PlainDict, PlainTensor, PlainOther>
      value;

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&value);
  }
  friend bool operator==(const PlainValue&, const PlainValue&) = default;
};

struct PlainPair {
  PlainValue key;
  PlainValue value;
  friend bool operator==(const PlainPair&, const PlainPair&) = default;
};

}  // namespace unreft::durable
