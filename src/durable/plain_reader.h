// Reads the plain encoding of extras (docs/formats/extras.md): what the PyTorch layer says of
// optimizers, random streams and places in a mesh. Pure; every byte is hostile until checked.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string_view>

#include "durable/plain_value.h"

namespace unreft::durable {

// The type that torch calls so; none if it is not among Dtype.
std::optional<Dtype> DtypeNamed(std::string_view name);

// One value and nothing after it. DataLoss, naming the offset, what was needed and what was found,
// for what no writer has written: a count above the bytes that are left, containers deeper than 32,
// a key that is there twice, a tag that is not known, a str that is no UTF-8 (surrogates are there
// as three bytes each). A tensor of a dtype that is not among Dtype stays a PlainOther.
absl::StatusOr<PlainValue> ReadPlain(std::string_view bytes);

// The record of the extras of `unreft.torch`, a PlainDict. FailedPrecondition for one that only a
// newer reader knows; NotFound for extras of another origin, and for those of earlier releases,
// which were a pickle and nothing tells from another's.
absl::StatusOr<PlainDict> ReadTorchExtras(std::string_view extras);

}  // namespace unreft::durable
