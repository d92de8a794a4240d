"""Moving bodies and the raw signals they cause: body, activities, people, scene, echo, in this order."""
