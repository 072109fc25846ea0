#pragma once
constexpr float kOffset = 1.0f;
